def measure_scheduler(): return []
