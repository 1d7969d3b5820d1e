// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import org.apache.spark.SparkException

/**
 * Request that cannot be trained as it is. The message says what to change. Most such requests are
 * refused before training.
 */
final class UnsupportedTrainingException(message: String) extends IllegalArgumentException(message)

/** Failure of the ranks, more often than spark.sparkdl.comm.maxRestarts allows. */
final class TrainingFailedException(message: String, cause: Throwable)
    extends RuntimeException(message, cause)

/**
 * Pattern for a failed Spark job whose task refused the request, with the task's message. A retry
 * does not help.
 */
private[bigdl] object Refusal {
  private val MessagePattern = (classOf[UnsupportedTrainingException].getName + ": (.*)").r

  def unapply(failure: Throwable): Option[String] = failure match {
    case job: SparkException =>
      Option(job.getMessage).flatMap(MessagePattern.findFirstMatchIn(_)).map(_.group(1))
    case _ => None
  }
}
