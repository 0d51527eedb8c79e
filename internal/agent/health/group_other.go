//go:build !unix

package health

import "os/exec"

// ownGroup does nothing: without process groups the command alone is killed.
func ownGroup(*exec.Cmd) {}
