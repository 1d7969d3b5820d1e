// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import scala.util.{Failure, Success, Try}

import com.intel.analytics.bigdl.dllib.optim.OptimMethod
import com.intel.analytics.bigdl.dllib.tensor.{Storage, Tensor}
import com.intel.analytics.bigdl.numeric.NumericFloat

/**
 * Trial of an optimization method: does it change each parameter by that parameter's own gradients
 * alone? Then any part of the parameters can be updated anywhere.
 */
private[bigdl] object ElementwiseTrial {
  private val Elements = 24
  private val Cut = 9
  private val Steps = 3

  /**
   * Try a method.
   *
   * @throws UnsupportedTrainingException if it is not elementwise
   */
  def check(method: OptimMethod[Float]): Unit = {
    def refuse(why: String): Nothing = throw new UnsupportedTrainingException(
      s"${nameOf(method)} $why: every executor updates a part of the parameters, so methods have" +
        " to be elementwise and without settings by parameter (SGD, Adam, Adagrad, Adadelta," +
        " Adamax, RMSprop and Ftrl are)"
    )
    Try((
      run(method, 0 until Elements),
      run(method, 0 until Cut) ++ run(method, Cut until Elements)
    )) match {
      case Failure(cause) => refuse(s"does not update a part of the parameters ($cause)")
      case Success((whole, parts)) =>
        if (whole != parts) refuse("updates a parameter by the gradients of others")
    }
  }

  /** Return the name in BigDL's documentation, without the suffix that Scala adds for floats. */
  def nameOf(method: OptimMethod[Float]): String =
    method.getClass.getSimpleName.stripSuffix("$mcF$sp")

  private def run(method: OptimMethod[Float], elements: Range): Seq[Float] = {
    val own = method.clone()
    val parameters = elements.map(element => math.sin(element + 1).toFloat).toArray
    val tensor = Tensor(Storage(parameters))
    (1 to Steps).foreach { step =>
      Progress(1, step, 1, 0).writeTo(own)
      val gradients = elements.map(element => math.cos(step * (element + 1)).toFloat).toArray
      own.optimize(_ => (1f, Tensor(Storage(gradients))), tensor)
    }
    parameters.toSeq
  }
}
