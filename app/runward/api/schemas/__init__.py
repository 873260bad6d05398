"""Bodies, views and queries as callers see them."""
