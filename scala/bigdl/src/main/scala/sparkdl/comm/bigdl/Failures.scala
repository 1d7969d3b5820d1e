package sparkdl.comm.bigdl

/** What cannot be trained this way; the message says what to change. Nothing has been trained. */
final class UnsupportedTrainingException(message: String) extends IllegalArgumentException(message)

/** A rank failed, and so all did, more often than spark.sparkdl.comm.maxRestarts allows. */
final class TrainingFailedException(message: String, cause: Throwable) extends RuntimeException(message, cause)
