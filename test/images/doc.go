// Package images checks the Dockerfile with BuildKit's own parser, converter and linter. It is a module of its own, so
// that BuildKit stays out of the product's dependencies.
package images
