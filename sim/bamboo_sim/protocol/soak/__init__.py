"""Long-lived jobs of real agents under random faults, compared bit for bit with a quiet job."""
