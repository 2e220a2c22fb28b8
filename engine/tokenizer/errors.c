/* Names of the engine's error codes. */
#include "engine/tokenizer/errors.h"

const char *eng_strerror(int code)
{
    switch (code) {
    case ENG_OK:
        return "ok";
    case ENG_ENOMEM:
        return "out of memory";
    case ENG_EINVAL:
        return "invalid argument";
    case ENG_EIO:
        return "input/output error";
    case ENG_EFORMAT:
        return "damaged model file";
    case ENG_EUNSUPPORTED:
        return "not supported";
    case ENG_EFULL:
        return "full";
    case ENG_ENOTFOUND:
        return "not found";
    default:
        return "unknown error";
    }
}
