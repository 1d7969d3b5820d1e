// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import org.scalatest.funsuite.AnyFunSuite

import com.intel.analytics.bigdl.dllib.optim.{
  Adadelta,
  Adagrad,
  Adam,
  Adamax,
  Ftrl,
  LBFGS,
  OptimMethod,
  RMSprop,
  SGD
}
import com.intel.analytics.bigdl.dllib.tensor.Tensor
import com.intel.analytics.bigdl.numeric.NumericFloat

class ElementwiseTrialSpec extends AnyFunSuite {
  private val elementwise: Seq[OptimMethod[Float]] = Seq(
    new SGD(0.1),
    new SGD(0.1, learningRateDecay = 0.01, weightDecay = 0.1, momentum = 0.9),
    new Adam(0.1),
    new Adagrad(0.1),
    new Adadelta(),
    new Adamax(),
    new RMSprop(),
    new Ftrl()
  )

  elementwise.zipWithIndex.foreach { case (method, number) =>
    test(s"${ElementwiseTrial.nameOf(method)} is elementwise ($number)")(
      ElementwiseTrial.check(method)
    )
  }

  private val others: Seq[OptimMethod[Float]] =
    Seq(new LBFGS(), new SGD(0.1, learningRates = Tensor(24).fill(1f)))

  others.foreach { method =>
    test(s"${ElementwiseTrial.nameOf(method)} is not elementwise, or not with these settings") {
      val refused = intercept[UnsupportedTrainingException](ElementwiseTrial.check(method))
      assert(refused.getMessage.startsWith(ElementwiseTrial.nameOf(method) + " "))
    }
  }
}
