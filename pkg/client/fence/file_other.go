//go:build !unix

package fence

// lock does nothing: on this system only one process may write to a File.
func lock(string) (unlock func(), err error) { return func() {}, nil }

// syncDir does nothing: on this system a rename is durable by itself, or cannot be.
func syncDir(string) error { return nil }
