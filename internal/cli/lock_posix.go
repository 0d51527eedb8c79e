//go:build unix && !linux

package cli

import "syscall"

// attributes put a command into a process group of its own.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
