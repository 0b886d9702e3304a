"""Recommendation from implicit feedback: which item does a user choose next?"""
