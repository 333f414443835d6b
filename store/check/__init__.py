"""Is a store whole, and how does it become so?"""
