//go:build unix

package process

import "syscall"

// What Pause and Resume send.
const (
	suspend = syscall.SIGSTOP
	proceed = syscall.SIGCONT
)
