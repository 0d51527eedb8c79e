// Package command has what all commands of the program share: checks of arguments, flags and their errors, help,
// examples, manual pages, and suggestions for mistyped words.
package command

// Program is the program's name for users; error messages begin with it.
const Program = "blackholed"
