"""The admission webhook. Reviews are answered without writing any object."""
