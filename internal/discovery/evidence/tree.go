package evidence

import "crypto/sha256"

// A receipt covers up to 1000 records, of which an omission concerns one. So the keeper signs the root of a tree, and the path to a record is short.

const (
	left     = 0
	right    = 1
	sizeStep = 1 + sha256.Size // of a path: the side of the other node, and the node
)

func leafOf(digest [32]byte) [32]byte { return sha256.Sum256(append([]byte{0}, digest[:]...)) }

func above(l, r []byte) [32]byte { return sha256.Sum256(append(append([]byte{1}, l...), r...)) }

// tree returns the root over some digests, at least one, and the path from each.
func tree(digests [][32]byte) (root [32]byte, paths [][]byte) {
	paths = make([][]byte, len(digests))
	row := make([][32]byte, len(digests))
	for i, d := range digests {
		row[i] = leafOf(d)
	}
	for width := 1; len(row) > 1; width *= 2 { // leaves below a node
		var next [][32]byte
		for i := 0; i+1 < len(row); i += 2 {
			for leaf := i * width; leaf < min((i+2)*width, len(digests)); leaf++ {
				if leaf < (i+1)*width {
					paths[leaf] = append(append(paths[leaf], right), row[i+1][:]...)
				} else {
					paths[leaf] = append(append(paths[leaf], left), row[i][:]...)
				}
			}
			next = append(next, above(row[i][:], row[i+1][:]))
		}
		if len(row)%2 == 1 {
			next = append(next, row[len(row)-1])
		}
		row = next
	}
	if len(row) > 0 {
		root = row[0]
	}
	return root, paths
}

// climb returns the root at the end of a path.
func climb(digest [32]byte, path []byte) (root [32]byte, ok bool) {
	if len(path)%sizeStep != 0 || len(path) > MaxPath*sizeStep {
		return root, false
	}
	for root = leafOf(digest); len(path) > 0; path = path[sizeStep:] {
		switch other := path[1:sizeStep]; path[0] {
		case left:
			root = above(other, root[:])
		case right:
			root = above(root[:], other)
		default:
			return root, false
		}
	}
	return root, true
}
