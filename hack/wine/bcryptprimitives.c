/*
 * bcryptprimitives.dll with its one function that Go programs need. Wine 8.0 lacks the library. For tests only.
 * ProcessPrng fills a buffer from the system's generator and never fails; RtlGenRandom is the same under an older name.
 */
__declspec(dllimport) unsigned char __stdcall SystemFunction036(void *buffer, unsigned long length); /* RtlGenRandom */

__declspec(dllexport) int __stdcall ProcessPrng(unsigned char *buffer, unsigned long long length)
{
	return SystemFunction036(buffer, (unsigned long)length);
}

int __stdcall DllMain(void *instance, unsigned long reason, void *reserved)
{
	(void)instance, (void)reason, (void)reserved;
	return 1;
}
