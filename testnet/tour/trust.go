package tour

import (
	"context"
	"fmt"
)

// noDistrust requires that no peer has taken another for a liar.
func noDistrust(ctx context.Context, t *Tour) (string, error) {
	n, err := t.Network.NoDistrust(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d peers distrust nobody", n), nil
}
