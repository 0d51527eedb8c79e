//go:build unix

package process

import "syscall"

// Signals of Pause and Resume.
const (
	suspend = syscall.SIGSTOP
	proceed = syscall.SIGCONT
)
