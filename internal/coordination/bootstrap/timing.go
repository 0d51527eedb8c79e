package bootstrap

import "time"

// Timing holds the pauses of a bootstrap. Safety does not depend on them. A zero field takes its default.
type Timing struct {
	Hello    time.Duration // between hellos without a certificate; 1 s
	Sight    time.Duration // visibility of a peer after its hello; 4 s
	Settle   time.Duration // visibility of a quorum before a proposal, plus up to a quarter; 2 s
	Patience time.Duration // added to Settle while fewer peers than the wanted voters are visible; 5 s
	Stagger  time.Duration // additional wait of each visible peer after the next lower one; 1 s
	Attempt  time.Duration // for one ballot; 3 s
	Resend   time.Duration // between repetitions of unanswered questions; 400 ms
	Backoff  time.Duration // after a failed ballot, up to 1.5 times at random, doubled three times; 1 s
	Recheck  time.Duration // between hellos with a certificate; 1 min
}

func (t Timing) orDefaults() Timing {
	for _, f := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&t.Hello, time.Second},
		{&t.Sight, 4 * time.Second},
		{&t.Settle, 2 * time.Second},
		{&t.Patience, 5 * time.Second},
		{&t.Stagger, time.Second},
		{&t.Attempt, 3 * time.Second},
		{&t.Resend, 400 * time.Millisecond},
		{&t.Backoff, time.Second},
		{&t.Recheck, time.Minute},
	} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	return t
}
