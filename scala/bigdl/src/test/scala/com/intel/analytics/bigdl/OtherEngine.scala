package com.intel.analytics.bigdl

import com.intel.analytics.bigdl.dllib.utils.{Engine, EngineType}

/** Which engine computes is internal to BigDL, and is set when its JVM starts. */
object OtherEngine {

  /** Runs `body` while `engine` is set. */
  def during[T](engine: EngineType)(body: => T): T = {
    val before = Engine.getEngineType()
    Engine.setEngineType(engine)
    try body
    finally Engine.setEngineType(before)
  }
}
