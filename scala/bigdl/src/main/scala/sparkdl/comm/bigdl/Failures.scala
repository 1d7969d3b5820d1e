package sparkdl.comm.bigdl

import org.apache.spark.SparkException

/** What cannot be trained this way; the message says what to change. Most is found before anything is trained. */
final class UnsupportedTrainingException(message: String) extends IllegalArgumentException(message)

/** A rank failed, and so all did, more often than spark.sparkdl.comm.maxRestarts allows. */
final class TrainingFailedException(message: String, cause: Throwable) extends RuntimeException(message, cause)

/** A Spark job in which a task said that this cannot be trained, and what it said: to try again does not help. */
private[bigdl] object Refusal {
  private val Said = (classOf[UnsupportedTrainingException].getName + ": (.*)").r

  def unapply(failure: Throwable): Option[String] = failure match {
    case job: SparkException => Option(job.getMessage).flatMap(Said.findFirstMatchIn(_)).map(_.group(1))
    case _ => None
  }
}
