//go:build !unix

package fence

// lock does nothing: only one process may write to a File here.
func lock(string) (unlock func(), err error) { return func() {}, nil }

// syncDir does nothing: renaming is durable by itself, or cannot be made so.
func syncDir(string) error { return nil }
