//go:build !linux

package kit

import "syscall"

func orphanless() *syscall.SysProcAttr { return nil }
