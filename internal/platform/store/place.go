package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/blackhole/blackhole/internal/platform/disk"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Place is what an operator knows of a folder with a database, or of a file.
type Place struct {
	Name   string // "database of services"
	Path   string
	Effect string // of its loss
	Remedy string // of damage
}

// Refused tells why a place does not open: another process uses it, this user may not read it, its disk fails, or it is
// damaged. An error that tells a problem, or that a later program wrote the place, passes as it is.
func (p Place) Refused(err error) error {
	is := fault.Problem{What: fmt.Sprintf("the %s in %s", p.Name, p.Path), Effect: p.Effect}
	kind, path := fault.Unavailable, (*fs.PathError)(nil)
	switch {
	case fault.ProblemOf(err).Remedy != "" || fault.KindOf(err) == fault.Unsupported || fault.KindOf(err) == fault.Conflict:
		return err
	case errors.Is(err, syscall.EAGAIN), strings.Contains(err.Error(), "lock held by current process"):
		is.What += " is in use by another process"
		is.Remedy = "End the peer that runs on this directory, or give this one another directory by --data"
	case errors.Is(err, fs.ErrPermission):
		is.What += " is closed to this user: " + p.cause(err)
		is.Remedy = "Give it back to the user of the peer: `chown -R USER " + p.Path + "`"
	case disk.Full(err), errors.Is(err, syscall.EIO), errors.Is(err, syscall.EROFS):
		is.What += " does not open, because its disk fails: " + p.cause(err)
		is.Remedy = "Free or repair the disk (`df -h " + p.Path + "`), and start again"
	case errors.As(err, &path) && !errors.Is(err, fs.ErrNotExist):
		is.What += " does not open: " + p.cause(err)
		is.Remedy = "Correct the path, or choose another directory by --data"
	default:
		is.What += " is damaged: " + p.cause(err)
		is.Remedy, kind = p.Remedy, fault.KindOf(err)
	}
	return is.Err(kind, err)
}

// Examine opens a database for reading, if it exists, and shows each value to its owner. Nothing changes. Errors: as Open, All.
func Examine(c Config, visit func(name string, value []byte) error) error {
	c.ReadOnly, c.FS, c.Logger = true, cmp.Or(c.FS, vfs.Default), slog.New(slog.DiscardHandler)
	if _, err := c.FS.Stat(c.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s, err := Open(c)
	if err != nil {
		return err
	}
	return errors.Join(s.All(visit), s.Close())
}

// cause is the first line of an error, without the name of the database and without the path.
func (p Place) cause(err error) string {
	for of := (*fault.Error)(nil); errors.As(err, &of) && of == err; {
		err = of.Err // its operation tells an operator nothing
	}
	text, _, _ := strings.Cut(err.Error(), "\n")
	text = strings.TrimSuffix(strings.TrimPrefix(text, "pebble: "), " <corruption detail carrier>")
	if is, ok := strings.CutPrefix(text, p.Path+" "); ok {
		return "it " + is
	}
	return strings.TrimPrefix(text, p.Path+": ")
}

// Aside is the command that moves a damaged place away.
func Aside(path string) string { return "`mv " + path + " " + path + ".damaged`" }

func (c Config) place() Place {
	return Place{
		Name: c.Format.Name, Path: c.Dir, Effect: "this peer does not start",
		Remedy: "Restore it from a backup; or " + Aside(c.Dir) + ", start, and register again what it held",
	}
}

// corrupted is what the database found in one of its files.
func corrupted(i pebble.DataCorruptionInfo) error {
	return fmt.Errorf("%s: %w", i.Path, i.Details)
}
