package proto

//go:generate go tool -modfile=../internal/tools/go.mod buf generate
