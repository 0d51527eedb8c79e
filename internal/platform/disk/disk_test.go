package disk

import (
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFull: only a lack of space, or of the user's quota, is a full disk, however the error is wrapped.
func TestFull(t *testing.T) {
	for number, full := range map[syscall.Errno]bool{syscall.ENOSPC: true, syscall.EDQUOT: true, syscall.EIO: false, syscall.EROFS: false} {
		require.Equal(t, full, Full(fmt.Errorf("save: %w", &fs.PathError{Op: "write", Path: "x", Err: number})), number)
	}
	require.False(t, Full(nil))
}
