//go:build !linux

package process

import (
	"errors"
	"syscall"
)

// Orphanless has no portable form: the child outlives a killed parent.
func Orphanless() *syscall.SysProcAttr { return nil }

func resident(int) uint64 { return 0 }

func used(int) (Usage, error) { return Usage{}, errors.ErrUnsupported }
