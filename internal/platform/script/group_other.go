//go:build !unix

package script

import "os/exec"

// ownGroup does nothing: without process groups the command alone is killed.
func ownGroup(*exec.Cmd) {}
