package main
import "context"
const memberCommand = "member"
func member([]string) error { return nil }
func (s *session) simulate(context.Context) error { return nil }
