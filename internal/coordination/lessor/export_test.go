package lessor

import "time"

// Next returns the time at which Due may return leases, in the past if it can now; false without a living
// lease.
func (l *Lessor) Next() (time.Duration, bool) {
	var earliest *lease
	for _, s := range []state{living, awaited, overdue} {
		if e := l.first(s); e != nil && (earliest == nil || e.deadline < earliest.deadline) {
			earliest = e
		}
	}
	if earliest == nil {
		return 0, false
	}
	return max(earliest.deadline, l.free), true
}
