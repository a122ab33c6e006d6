"""The way of a generate request: checked, stored, or taken back."""
