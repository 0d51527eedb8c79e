package simulation

import "time"

// network carries messages between named places: members and clients.
type network struct {
	*scheduler
	cut    map[[2]string]int // from, to: number of present cuts
	loss   float64
	repeat float64
	slow   time.Duration // longest delay of a message
	sent   int
	lost   int
}

func newNetwork(w *scheduler) *network {
	return &network{scheduler: w, cut: make(map[[2]string]int), slow: 3 * time.Millisecond}
}

// send delivers a message, mostly once. Delays vary, so messages overtake each other.
func (n *network) send(from, to string, arrive func()) {
	n.sent++
	for copies := 0; copies < 1 || n.chance(n.repeat) && copies < 3; copies++ {
		if n.chance(n.loss) {
			n.lost++
			continue
		}
		delay := n.between(n.slow/8, n.slow)
		if n.chance(0.01) {
			delay *= 20
		}
		n.after(delay, func() {
			if n.cut[[2]string{from, to}] > 0 {
				n.lost++
				return
			}
			arrive()
		})
	}
}

// sever cuts the routes from some places to others, and returns their repair.
func (n *network) sever(from, to []string) (heal func()) {
	change := func(by int) {
		for _, a := range from {
			for _, b := range to {
				if a != b {
					n.cut[[2]string{a, b}] += by
				}
			}
		}
	}
	change(1)
	return func() { change(-1) }
}

// reaches reports whether messages pass from one place to another.
func (n *network) reaches(from, to string) bool { return n.cut[[2]string{from, to}] == 0 }
