package records

// Outcome is what became of one record handed to its keepers: Err is nil when at least one stored it.
type Outcome struct {
	Stored Stored
	Err    error
}
