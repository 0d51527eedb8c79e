//go:build !unix

package process

// What Pause and Resume send: the system has nothing of the kind, and refuses it.
const suspend, proceed = absent("SIGSTOP"), absent("SIGCONT")

type absent string

// Signal implements os.Signal.
func (absent) Signal() {}

func (a absent) String() string { return string(a) }
