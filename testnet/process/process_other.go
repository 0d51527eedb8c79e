//go:build !linux

package process

import "syscall"

// orphanless has no portable form: the child outlives a killed parent.
func orphanless() *syscall.SysProcAttr { return nil }

func resident(int) uint64 { return 0 }
