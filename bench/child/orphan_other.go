//go:build !linux

package child

import "syscall"

func orphanless() *syscall.SysProcAttr { return nil }
