# Finds utf8proc and gives the target UTF8PROC::utf8proc. Sets UTF8PROC_FOUND and UTF8PROC_VERSION.

include(FindPackageHandleStandardArgs)
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
    pkg_check_modules(PC_UTF8PROC QUIET libutf8proc)
endif()
find_path(UTF8PROC_INCLUDE_DIR utf8proc.h HINTS ${PC_UTF8PROC_INCLUDE_DIRS})
find_library(UTF8PROC_LIBRARY utf8proc HINTS ${PC_UTF8PROC_LIBRARY_DIRS})
mark_as_advanced(UTF8PROC_INCLUDE_DIR UTF8PROC_LIBRARY)
set(UTF8PROC_VERSION "")
if(UTF8PROC_INCLUDE_DIR)
    file(STRINGS "${UTF8PROC_INCLUDE_DIR}/utf8proc.h" lines
        REGEX "#define UTF8PROC_VERSION_(MAJOR|MINOR) +[0-9]+")
    string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*" "\\1.\\2" UTF8PROC_VERSION "${lines}")
endif()

find_package_handle_standard_args(UTF8PROC
    REQUIRED_VARS UTF8PROC_LIBRARY UTF8PROC_INCLUDE_DIR VERSION_VAR UTF8PROC_VERSION
    REASON_FAILURE_MESSAGE "cmake/setup.sh installs it (Debian: libutf8proc-dev)")

if(UTF8PROC_FOUND AND NOT TARGET UTF8PROC::utf8proc)
    add_library(UTF8PROC::utf8proc UNKNOWN IMPORTED)
    set_target_properties(UTF8PROC::utf8proc PROPERTIES
        IMPORTED_LOCATION "${UTF8PROC_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${UTF8PROC_INCLUDE_DIR}")
endif()
