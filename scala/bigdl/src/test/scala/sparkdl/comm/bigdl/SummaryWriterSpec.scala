// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import java.io.IOException
import java.nio.file.Files

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import com.intel.analytics.bigdl.SparkdlBigDL
import com.intel.analytics.bigdl.dllib.visualization.{TrainSummary, ValidationSummary}

class SummaryWriterSpec extends AnyFunSuite with BeforeAndAfterAll {
  private val Many = 2000
  private lazy val folder = Files.createTempDirectory("sparkdl-summary").toString

  /** Summary whose last value reaches the file only after the third read. */
  private final class Slow extends TrainSummary(folder, "slow") {
    var asked = 0

    override def readScalar(tag: String): Array[(Long, Float, Double)] = {
      asked += 1
      if (asked == 3) throw new IOException("half of it is written")
      val read = super.readScalar(tag)
      if (asked == 2) read.filter(_._1 < Many) else read
    }
  }

  // a thread of BigDL's engine writes the summary
  override def beforeAll(): Unit = SparkdlBigDL.setNodeAndCore(1, 1)

  private val result = {
    val iterations =
      (1 to Many).map(number => IterationRecord(number, 1, number * 0.5f, 0, 0.1f, 100))
    val validations =
      (1 to Many).map(number => ValidationRecord(number, Seq("Loss" -> 2f, "Top1Accuracy" -> 0.5f)))
    TrainingResult(iterations, validations, Map.empty, Array.empty, "{}")
  }

  test("written values can be read at once, also after earlier ones") {
    val (train, validation) = (TrainSummary(folder, "run"), ValidationSummary(folder, "run"))
    val writer = new SummaryWriter(Some(train), Some(validation))
    (1 to 2).foreach { times =>
      writer.write(result)
      for (name <- Seq("Loss", "Throughput")) assert(train.readScalar(name).length === times * Many)
      for (name <- Seq("Loss", "Top1Accuracy"))
        assert(validation.readScalar(name).length === times * Many)
    }
    assert(train.readScalar("Loss").map { case (step, loss, _) => step -> loss }
      .last === (Many.toLong -> Many * 0.5f))
    Seq(train, validation).foreach(_.close())
  }

  test("the writer waits until all values can be read") {
    val slow = new Slow
    new SummaryWriter(Some(slow), None).write(result)
    assert(slow.asked > 3)
    slow.close()
  }
}
