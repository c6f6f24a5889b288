"""Files derived from the ICD, for other programs and for people; see `facade.tools.exports.files`."""
