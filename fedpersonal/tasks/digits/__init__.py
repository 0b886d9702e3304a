"""Handwritten digits of clients whose writing differs: which digit does an image show?"""
