//go:build !unix

package process

// Signals of Pause and Resume: the system has none, and refuses them.
const suspend, proceed = absent("SIGSTOP"), absent("SIGCONT")

type absent string

// Signal implements os.Signal.
func (absent) Signal() {}

func (a absent) String() string { return string(a) }
