"""Ratings that users gave to items."""
