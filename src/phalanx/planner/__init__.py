"""(Job, Machine, Trace) -> Plan: pure arithmetic, no torch; every choice has its reason."""
