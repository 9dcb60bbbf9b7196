# Finds PCRE2 (8-bit code units) and gives the target PCRE2::pcre2-8. Sets PCRE2_FOUND and PCRE2_VERSION.

include(FindPackageHandleStandardArgs)
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
    pkg_check_modules(PC_PCRE2 QUIET libpcre2-8)
endif()
find_path(PCRE2_INCLUDE_DIR pcre2.h HINTS ${PC_PCRE2_INCLUDE_DIRS})
find_library(PCRE2_LIBRARY pcre2-8 HINTS ${PC_PCRE2_LIBRARY_DIRS})
mark_as_advanced(PCRE2_INCLUDE_DIR PCRE2_LIBRARY)
set(PCRE2_VERSION "")
if(PCRE2_INCLUDE_DIR)
    file(STRINGS "${PCRE2_INCLUDE_DIR}/pcre2.h" lines REGEX "#define PCRE2_(MAJOR|MINOR) +[0-9]+")
    string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*" "\\1.\\2" PCRE2_VERSION "${lines}")
endif()

find_package_handle_standard_args(PCRE2
    REQUIRED_VARS PCRE2_LIBRARY PCRE2_INCLUDE_DIR VERSION_VAR PCRE2_VERSION
    REASON_FAILURE_MESSAGE "cmake/setup.sh installs it (Debian: libpcre2-dev)")

if(PCRE2_FOUND AND NOT TARGET PCRE2::pcre2-8)
    add_library(PCRE2::pcre2-8 UNKNOWN IMPORTED)
    set_target_properties(PCRE2::pcre2-8 PROPERTIES
        IMPORTED_LOCATION "${PCRE2_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${PCRE2_INCLUDE_DIR}")
endif()
