"""Answering: resident inlays in slots, mixed requests in one pass."""
