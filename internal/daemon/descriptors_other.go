//go:build !unix

package daemon

// descriptors is the number of files and connections that this process may have open: this system has no limit of its own.
func descriptors() uint64 { return 1 << 16 }
