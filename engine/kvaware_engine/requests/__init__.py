"""Where a request goes: one model's workers as columns, what each option would cost, and who holds a place where."""
