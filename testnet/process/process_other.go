//go:build !linux

package process

import "syscall"

// orphanless can do nothing portable: the child outlives a parent that is killed.
func orphanless() *syscall.SysProcAttr { return nil }

func resident(int) uint64 { return 0 }
