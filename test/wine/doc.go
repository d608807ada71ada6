// Package wine holds tests that run the real windows/amd64 programs under Wine. They need Wine and a C compiler for
// Windows: Debian packages wine, wine64 and gcc-mingw-w64-x86-64.
package wine
