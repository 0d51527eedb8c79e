package bootstrap

import "time"

// Timing holds the pauses of a founding. None of them bears on safety. A zero
// field takes the default.
type Timing struct {
	Hello    time.Duration // between hellos while there is no certificate; 1 s
	Sight    time.Duration // a peer is visible for so long after its hello; 4 s
	Settle   time.Duration // a quorum is visible for so long, and up to a quarter more, before anybody proposes; 2 s
	Patience time.Duration // added to Settle while fewer are visible than the voters wanted; 5 s
	Stagger  time.Duration // each visible peer waits so much longer than the next lower; 1 s
	Attempt  time.Duration // one ballot; 3 s
	Resend   time.Duration // what is not answered is asked again; 400 ms
	Backoff  time.Duration // after a failed ballot, at random up to 1.5 times that, doubled three times; 1 s
	Recheck  time.Duration // between hellos of a peer that has the certificate; 1 min
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
