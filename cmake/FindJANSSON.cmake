# Finds jansson and gives the target JANSSON::jansson. Sets JANSSON_FOUND and JANSSON_VERSION.

include(FindPackageHandleStandardArgs)
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
    pkg_check_modules(PC_JANSSON QUIET jansson)
endif()
find_path(JANSSON_INCLUDE_DIR jansson.h HINTS ${PC_JANSSON_INCLUDE_DIRS})
find_library(JANSSON_LIBRARY jansson HINTS ${PC_JANSSON_LIBRARY_DIRS})
mark_as_advanced(JANSSON_INCLUDE_DIR JANSSON_LIBRARY)
set(JANSSON_VERSION "")
if(JANSSON_INCLUDE_DIR)
    file(STRINGS "${JANSSON_INCLUDE_DIR}/jansson.h" JANSSON_VERSION
        REGEX "#define JANSSON_VERSION +\"[0-9.]+\"")
    string(REGEX REPLACE ".*\"([0-9.]+)\".*" "\\1" JANSSON_VERSION "${JANSSON_VERSION}")
endif()

find_package_handle_standard_args(JANSSON
    REQUIRED_VARS JANSSON_LIBRARY JANSSON_INCLUDE_DIR VERSION_VAR JANSSON_VERSION
    REASON_FAILURE_MESSAGE "cmake/setup.sh installs it (Debian: libjansson-dev)")

if(JANSSON_FOUND AND NOT TARGET JANSSON::jansson)
    add_library(JANSSON::jansson UNKNOWN IMPORTED)
    set_target_properties(JANSSON::jansson PROPERTIES
        IMPORTED_LOCATION "${JANSSON_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${JANSSON_INCLUDE_DIR}")
endif()
