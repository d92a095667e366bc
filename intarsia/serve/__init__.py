"""Prediction: resident tasks in slots, requests of many tasks in one pass."""
